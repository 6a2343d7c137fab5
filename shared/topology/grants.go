package topology

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"colophon/shared/event"
)

// Kind is what an identity is to the line.
type Kind string

// The kinds of identities.
const (
	KindService   Kind = "service"
	KindProvision Kind = "provision" // creates streams and consumers, and is the janitor
	KindGateway   Kind = "gateway"
	KindOperator  Kind = "operator"
)

// Services are the five services, by the names of their identities.
var Services = []string{"capture", "hasher", "deriver", "premis", "quarantine"}

// Identity is one client of the broker: one nkey, one inbox.
type Identity struct {
	Kind    Kind     `json:"kind"`
	Name    string   `json:"name"`
	Devices []string `json:"devices,omitempty"` // of a gateway: it may take their dispatches
}

// Inbox is the prefix of the identity's inboxes: a token of its own, so that no
// wildcard of another identity covers it.
func (i Identity) Inbox() string { return "_INBOX_" + i.Name }

// Rule lists subjects; what is not allowed is denied, and a deny wins.
type Rule struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny,omitempty"`
}

// Grants are what the broker lets an identity do.
type Grants struct {
	Publish   Rule `json:"publish"`
	Subscribe Rule `json:"subscribe"`
}

// Access is who may use a broker.
type Access struct {
	Identities []Identity
	Profiles   []string // that the installation offers
}

// DefaultAccess is the line itself and the gateways and operators named.
func DefaultAccess(profiles []string, gateways, operators []Identity) Access {
	a := Access{Profiles: profiles}
	for _, s := range Services {
		a.Identities = append(a.Identities, Identity{Kind: KindService, Name: s})
	}
	a.Identities = append(a.Identities, Identity{Kind: KindProvision, Name: string(KindProvision)})
	a.Identities = append(a.Identities, gateways...)
	a.Identities = append(a.Identities, operators...)
	return a
}

var identityName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Validate reports every fault at once.
func (a Access) Validate() error {
	var errs []error
	seen := map[string]bool{}
	for _, i := range a.Identities {
		if !identityName.MatchString(i.Name) {
			errs = append(errs, fmt.Errorf("topology: %q names no identity: use letters, digits, _ and -", i.Name))
		}
		if seen[i.Name] {
			errs = append(errs, fmt.Errorf("topology: two identities are named %s", i.Name))
		}
		seen[i.Name] = true
		if i.Kind == KindService && !slices.Contains(Services, i.Name) {
			errs = append(errs, fmt.Errorf("topology: there is no service %s", i.Name))
		}
	}
	return errors.Join(errs...)
}

// duty is what a service does on the broker.
type duty struct {
	says    []string            // subjects it publishes
	durable []string            // consumers of the table that it works on
	follows map[string][]string // stream: filters of its followers, none is everything
	answers string              // an endpoint of its own; all below that root are
	asks    string              // an endpoint of another service
}

// everything makes a follower of a whole stream.
var everything = []string(nil)

func (a Access) duty(service string) duty {
	op, failed, letter := event.SubjectOp+".*", event.SubjectAttemptFailed, event.DeadLetterSubject(service)
	own := func() map[string][]string { // of a stage: its facts and its dead letters
		return map[string][]string{event.StreamIngest: everything, event.StreamDeadLetter: {letter}}
	}
	switch service {
	case "capture":
		d := duty{
			says:    []string{event.SubjectBatch + ".*", event.SubjectFrameCaptured, failed, op, letter, event.SubjectCaptureBatch + ".>", event.SubjectCaptureFrame + ".>", event.SubjectDispatch + ".*"},
			durable: []string{CaptureBatch, CaptureFrame, CaptureFault}, follows: own(), answers: event.EndpointBatchStatus,
			asks: event.EndpointPremisExport, // for the bag
		}
		d.says = append(d.says, event.SubjectFrameFixed) // of a slot that is stuck: the lost order once more
		d.follows[event.StreamCapture] = everything
		return d
	case "hasher":
		return duty{says: []string{event.SubjectFrameFixed, failed, op, letter}, durable: []string{Hasher}, follows: own()}
	case "deriver":
		d := duty{says: []string{event.SubjectDerivative + ".*", event.SubjectProfilePinned, failed, op, letter}, follows: own()}
		for _, p := range a.Profiles {
			d.durable = append(d.durable, DeriverConsumer(p))
		}
		return d
	case "premis":
		return duty{says: []string{op}, durable: []string{Premis}, follows: map[string][]string{event.StreamIngest: everything}, answers: event.EndpointPremisExport}
	}
	return duty{ // quarantine
		says:    append([]string{event.SubjectCase + ".*", op}, a.orders()...),
		durable: []string{Quarantine}, answers: event.EndpointQuarantineList,
		follows: map[string][]string{event.StreamIngest: everything, event.StreamDeadLetter: everything, event.StreamCapture: everything},
	}
}

// orders are the subjects of messages that ask for work: what a replay
// publishes again.
func (a Access) orders() (out []string) {
	for _, c := range Consumers(a.Profiles) {
		for _, f := range c.Filter {
			if !slices.Contains(out, f) {
				out = append(out, f)
			}
		}
	}
	return out
}

// Grants gives what an identity may do.
func (a Access) Grants(i Identity) Grants {
	g := &grants{access: a}
	switch i.Kind {
	case KindService:
		g.service(i)
	case KindProvision:
		g.provision()
	case KindGateway:
		g.gateway(i)
	case KindOperator:
		g.operator()
	}
	g.Subscribe.Allow = append(g.Subscribe.Allow, i.Inbox()+".>")
	for _, r := range []*Rule{&g.Publish, &g.Subscribe} {
		for _, l := range []*[]string{&r.Allow, &r.Deny} {
			slices.Sort(*l)
			*l = slices.Compact(*l)
		}
	}
	return g.Grants
}

// grants collects the grants of one identity.
type grants struct {
	Grants
	access Access
}

func (g *grants) say(subjects ...string) { g.Publish.Allow = append(g.Publish.Allow, subjects...) }

func (g *grants) deny(subjects ...string) { g.Publish.Deny = append(g.Publish.Deny, subjects...) }

// read lets it look at a stream and its single messages.
func (g *grants) read(stream string) {
	g.say("$JS.API.STREAM.INFO."+stream, "$JS.API.STREAM.MSG.GET."+stream, "$JS.API.DIRECT.GET."+stream)
}

// work lets it take and settle the messages of a durable consumer.
func (g *grants) work(stream, consumer string) {
	g.say("$JS.API.CONSUMER.INFO."+stream+"."+consumer, "$JS.API.CONSUMER.MSG.NEXT."+stream+"."+consumer,
		"$JS.ACK."+stream+"."+consumer+".>", "$JS.ACK.*.*."+stream+"."+consumer+".>") // the second where a domain is in it
}

// follow lets it read a stream in order, by consumers that it makes for itself.
// The broker compares a single filter with the subject of the request; for
// several, or none, the request has no filter in its subject. The durable
// consumers of the table are nobody's to make, change or take from but their
// service's.
func (g *grants) follow(stream string, filters, own []string) {
	g.read(stream)
	create := "$JS.API.CONSUMER.CREATE." + stream + "."
	if len(filters) == 1 {
		g.say(create + "*." + filters[0])
	} else {
		g.say(create + "*")
	}
	g.say("$JS.API.CONSUMER.INFO."+stream+".*", "$JS.API.CONSUMER.MSG.NEXT."+stream+".*")
	for _, c := range Consumers(g.access.Profiles) {
		if c.Stream != stream {
			continue
		}
		g.deny(create+c.Name, create+c.Name+".>")
		if !slices.Contains(own, c.Name) {
			g.deny("$JS.API.CONSUMER.MSG.NEXT." + stream + "." + c.Name)
		}
	}
}

// answer lets a service answer what is asked of it and of its kind.
func (g *grants) answer(service, endpoint string) {
	root := rootOf(endpoint)
	g.Subscribe.Allow = append(g.Subscribe.Allow, root+".*")
	for _, verb := range []string{"PING", "INFO", "STATS"} {
		g.Subscribe.Allow = append(g.Subscribe.Allow, "$SRV."+verb, "$SRV."+verb+"."+service, "$SRV."+verb+"."+service+".*")
	}
	for _, i := range g.access.Identities {
		if i.Kind == KindGateway || i.Kind == KindOperator || i.Kind == KindService && root == rootOf(g.access.duty(i.Name).asks) {
			g.say(i.Inbox() + ".>")
		}
	}
}

// ask lets it ask an endpoint of a service. Parts of a file are acknowledged
// to the service's own inbox.
func (g *grants) ask(endpoint string) {
	g.say(endpoint)
	for _, i := range g.access.Identities {
		if i.Kind == KindService && rootOf(g.access.duty(i.Name).answers) == rootOf(endpoint) {
			g.say(i.Inbox() + ".>")
		}
	}
}

func rootOf(endpoint string) string {
	root, _, _ := strings.Cut(endpoint, ".")
	return root
}

func (g *grants) service(i Identity) {
	d := g.access.duty(i.Name)
	g.say(d.says...)
	for stream, filters := range d.follows {
		g.follow(stream, filters, d.durable)
	}
	for _, c := range Consumers(g.access.Profiles) {
		if slices.Contains(d.durable, c.Name) {
			g.read(c.Stream)
			g.work(c.Stream, c.Name)
		}
	}
	if slices.Contains(d.says, event.SubjectDispatch+".*") {
		g.read(event.StreamDispatch)
	}
	if d.answers != "" {
		g.answer(i.Name, d.answers)
	}
	if d.asks != "" {
		g.ask(d.asks)
	}
}

// provision makes streams and consumers, and clears away what is settled; it
// deletes no stream.
func (g *grants) provision() {
	g.say("$JS.API.INFO", event.SubjectOp+".*")
	for _, s := range Streams(DefaultSizes()) {
		g.follow(s.Name, everything, nil)
		g.say("$JS.API.STREAM.CREATE."+s.Name, "$JS.API.STREAM.UPDATE."+s.Name, "$JS.API.DIRECT.GET."+s.Name+".>",
			"$JS.API.CONSUMER.CREATE."+s.Name+".*.>") // also those of the table
		if !s.DenyPurge {
			g.say("$JS.API.STREAM.PURGE."+s.Name, "$JS.API.STREAM.MSG.DELETE."+s.Name)
		}
	}
	g.Publish.Deny = slices.DeleteFunc(g.Publish.Deny, func(s string) bool { return strings.HasPrefix(s, "$JS.API.CONSUMER.CREATE.") })
}

// DispatchConsumer is the durable consumer by which a gateway takes what is
// asked of a device. The gateway makes it, filtered to that device.
func DispatchConsumer(device string) string { return "gateway-" + event.Encode(device) }

// gateway publishes below its own name only. It looks at the streams for where
// a batch stands: a resend that the broker calls a duplicate is compared with
// the stored message.
func (g *grants) gateway(i Identity) {
	for _, kind := range []string{event.SubjectCaptureBatch, event.SubjectCaptureFrame, event.SubjectCaptureFault} {
		g.say(kind + "." + event.Encode(i.Name) + ".*")
	}
	g.say("$JS.API.STREAM.INFO."+event.StreamCapture, "$JS.API.DIRECT.GET."+event.StreamCapture,
		"$JS.API.STREAM.INFO."+event.StreamIngest,
		event.EndpointBatchStatus, event.EndpointBatchFrames, event.EndpointBatchList, event.EndpointQuarantineList)
	for _, d := range i.Devices {
		c := DispatchConsumer(d)
		g.say("$JS.API.STREAM.INFO."+event.StreamDispatch, "$JS.API.CONSUMER.CREATE."+event.StreamDispatch+"."+c+"."+event.SubjectDispatch+"."+event.Encode(d))
		g.work(event.StreamDispatch, c)
	}
}

// operator looks at everything, asks the services, and sends a message that
// failed to where it came from. Judging an archive makes readers, and removes
// them.
func (g *grants) operator() {
	g.say("$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$SRV.PING", "$SRV.PING.>", "$SRV.INFO", "$SRV.INFO.>", "$SRV.STATS", "$SRV.STATS.>")
	for _, s := range Streams(DefaultSizes()) {
		g.follow(s.Name, everything, nil)
		g.say("$JS.API.DIRECT.GET."+s.Name+".>", "$JS.API.CONSUMER.NAMES."+s.Name, "$JS.API.CONSUMER.LIST."+s.Name, "$JS.API.CONSUMER.DELETE."+s.Name+".*")
		for _, c := range Consumers(g.access.Profiles) {
			if c.Stream == s.Name {
				g.deny("$JS.API.CONSUMER.DELETE." + s.Name + "." + c.Name)
			}
		}
	}
	g.say(g.access.orders()...)
	for _, service := range g.access.Identities {
		if service.Kind != KindService {
			continue
		}
		if d := g.access.duty(service.Name); d.answers != "" {
			g.ask(rootOf(d.answers) + ".*")
		}
	}
}
