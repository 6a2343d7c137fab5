package quarantine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"colophon/shared/event"

	"colophon/services/quarantine/internal/cases"
)

// refusal says why one case is not decided; nothing changed then.
type refusal string

// Error implements error.
func (r refusal) Error() string { return string(r) }

func refused(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

// decision is what a person asks of a case. The right to decide is held.
type decision func(ctx context.Context, r cases.Record, by event.Request, dry bool) error

func (q *Service) replay(ctx context.Context, req event.CaseRequest) (any, error) {
	return q.decide(ctx, req, q.replayOne)
}

func (q *Service) rescan(ctx context.Context, req event.CaseRequest) (any, error) {
	return q.decide(ctx, req, q.rescanOne)
}

func (q *Service) discard(ctx context.Context, req event.CaseRequest) (any, error) {
	return q.decide(ctx, req, q.discardOne)
}

// decide makes a decision on one case, or on many by filter. One that is
// refused leaves the others alone. By filter it goes over at most a page of
// decisions, a dry run over all; Next says that there is more.
func (q *Service) decide(ctx context.Context, req event.CaseRequest, d decision) (any, error) {
	by, err := requester(req)
	if err != nil {
		return nil, err
	}
	if err := q.Ready(); err != nil {
		return nil, refuse(503, "quarantine does not decide yet: %v", err)
	}
	if err := q.readToEnd(ctx); err != nil {
		return nil, err
	}
	if req.ID != "" {
		return q.decideOne(ctx, req, d, by)
	}
	if req.Batch == "" && req.Code == "" && req.Service == "" && req.Operation == "" && req.State == "" && req.OlderThan == 0 && req.NewerThan == 0 && !req.All {
		return nil, refuse(400, "say which cases: an id, a filter, or all")
	}
	req.All = false // only what is open can be decided
	return q.decideMany(ctx, req, d, by)
}

func (q *Service) decideMany(ctx context.Context, req event.CaseRequest, d decision, by event.Request) (any, error) {
	out := event.CaseDecision{DryRun: req.DryRun, Refused: map[string]string{}}
	ids, next, err := q.page(req)
	if err != nil {
		return nil, err
	}
	out.Next = next
	room := q.room()
	for i, id := range ids {
		if err := q.one(ctx, id, d, by, &out); err != nil {
			return nil, fmt.Errorf("%w (%d decided before, giving the same again is safe)", err, len(out.Done))
		}
		if room -= answered(out, id); room < 0 && i < len(ids)-1 {
			out.Next = id
			break
		}
	}
	return out, nil
}

// answered is about how many bytes a case takes in the answer.
func answered(out event.CaseDecision, id string) int {
	if why, ok := out.Refused[id]; ok {
		return len(id) + len(why) + 16
	}
	if out.DryRun {
		return 0
	}
	return len(id) + 8
}

func (q *Service) decideOne(ctx context.Context, req event.CaseRequest, d decision, by event.Request) (any, error) {
	id, err := q.id(req.ID)
	if err != nil {
		return nil, err
	}
	if _, ok, err := q.store.Case(id); err != nil {
		return nil, err
	} else if !ok {
		return nil, refuse(404, "there is no case %q", id)
	}
	out := event.CaseDecision{DryRun: req.DryRun, Refused: map[string]string{}}
	err = q.one(ctx, id, d, by, &out)
	return out, err
}

// page lists the cases that one request decides, and the cursor behind them.
func (q *Service) page(req event.CaseRequest) (ids []string, next string, err error) {
	size := maxPage
	if req.Limit > 0 {
		size = min(req.Limit, maxPage)
	}
	err = q.store.Each(cases.Query{CaseRequest: req, Now: q.Now()}, func(id string) (bool, error) {
		if !req.DryRun && len(ids) == size {
			next = ids[len(ids)-1]
			return false, nil
		}
		ids = append(ids, id)
		return true, nil
	})
	return ids, next, err
}

func (q *Service) one(ctx context.Context, id string, d decision, by event.Request, out *event.CaseDecision) error {
	unlock, err := q.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = q.eligible(ctx, id, out.DryRun, func(r cases.Record) error { return d(ctx, r, by, out.DryRun) })
	var no refusal
	switch {
	case errors.As(err, &no):
		out.Refused[id] = string(no)
		return nil
	case err != nil:
		return err
	}
	out.Eligible++
	if !out.DryRun {
		out.Done = append(out.Done, id)
	}
	return nil
}

// eligible lets a decision through for a case that is open and that the log
// has not moved on.
func (q *Service) eligible(ctx context.Context, id string, dry bool, decide func(cases.Record) error) error {
	r, due, err := q.store.Due(id)
	if err != nil {
		return err
	}
	if !r.Open() {
		return refused("%s", standing(r))
	}
	if len(due) == 0 {
		return decide(r)
	}
	if !dry {
		if err := q.settle(ctx, id); err != nil {
			return err
		}
	}
	if due[0].State == event.CaseRescan { // which the policy asks for: it decides first, a person over it
		if r, _, err = q.store.Case(id); err != nil {
			return err
		}
		return decide(r)
	}
	if due[len(due)-1].State == event.CaseResolved {
		return refused("it was finished meanwhile")
	}
	return refused("pass %d began meanwhile", due[0].NextPass)
}

// standing says why a closed case is closed.
func standing(r cases.Record) string {
	switch r.State {
	case event.CaseReplayed:
		return fmt.Sprintf("it was replayed already, into pass %d, by %s", r.NextPass, r.Actor)
	case event.CaseDiscarded:
		return "it was discarded already, by " + r.Actor
	case event.CaseResolved:
		return "it is resolved: the work is finished"
	}
	return "it is " + r.State
}

func (q *Service) discardOne(ctx context.Context, r cases.Record, by event.Request, dry bool) error {
	if dry {
		return nil
	}
	return q.tell(ctx, cases.Decided(r, event.CaseDiscarded, by, 0, q.Now()))
}

// rescanOne asks for a case's slot to be captured again, by a fact and nothing
// else: whoever knows the devices follows it. The case is closed by what the
// new bytes come to, or opened again; till then another decision may be made.
func (q *Service) rescanOne(ctx context.Context, r cases.Record, by event.Request, dry bool) error {
	switch {
	case r.Slot == (event.Slot{}):
		return refused("its message names no frame: there is nothing to scan again")
	case r.Frame == "":
		return refused("it is about the batch, not about one of its frames: a declaration or a discard decides it")
	case dry:
		return nil
	}
	next, err := q.store.NextPass(r)
	if err != nil {
		return err
	}
	return q.tell(ctx, cases.Decided(r, event.CaseRescan, by, next, q.Now()))
}

// requester reads who decides and why; both go into headers and facts.
func requester(req event.CaseRequest) (event.Request, error) {
	by := event.Request{Actor: oneLine(req.Actor), Note: oneLine(req.Note)}
	var missing []string
	if by.Actor == "" {
		missing = append(missing, "an actor")
	}
	if by.Note == "" {
		missing = append(missing, "a note")
	}
	if len(missing) > 0 && !req.DryRun {
		return by, refuse(400, "a decision needs %s", strings.Join(missing, " and "))
	}
	return by, nil
}

// maxLine bounds an actor and a note, in bytes.
const maxLine = 1024

// oneLine makes a text fit for a header.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) > maxLine {
		s = strings.ToValidUTF8(s[:maxLine], "")
	}
	return strings.TrimSpace(s)
}
