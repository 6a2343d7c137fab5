package quarantine

import (
	"context"
	"encoding/json"

	"colophon/shared/event"

	"colophon/services/quarantine/internal/cases"
)

// Pages of a list. A page also ends where its answer would outgrow the
// broker's limit; either way Next says that there is more.
const (
	defaultPage = 100
	maxPage     = 1000
)

func pageSize(limit int) int {
	if limit == 0 {
		return defaultPage
	}
	return min(limit, maxPage)
}

// room is how many bytes of an answer may be filled.
func (q *Service) room() int {
	if limit := q.NC.MaxPayload(); limit > 0 {
		return int(limit / 4 * 3)
	}
	return 512 << 10
}

func (q *Service) list(_ context.Context, req event.CaseRequest) (any, error) {
	if req.ID != "" {
		id, err := q.id(req.ID)
		if err != nil {
			return nil, err
		}
		req.ID, req.All = id, true
	}
	asked := cases.Query{CaseRequest: req, Now: q.Now()}
	total, err := q.store.Count(asked)
	if err != nil {
		return nil, err
	}
	out := event.CaseList{Cases: []event.Case{}, Total: total}
	size, room := pageSize(req.Limit), q.room()
	err = q.store.Each(asked, func(id string) (bool, error) {
		r, _, err := q.store.Case(id)
		if err != nil {
			return false, err
		}
		c := view(r)
		data, err := json.Marshal(c)
		if err != nil {
			return false, err
		}
		if room -= len(data) + 1; len(out.Cases) == size || room < 0 && len(out.Cases) > 0 {
			out.Next = out.Cases[len(out.Cases)-1].ID
			return false, nil
		}
		out.Cases = append(out.Cases, c)
		return true, nil
	})
	return out, err
}

func view(r cases.Record) event.Case {
	return event.Case{CaseFact: r.CaseFact, Open: r.Open(), OpenedAt: r.OpenedAt}
}

func (q *Service) show(_ context.Context, req event.CaseRequest) (any, error) {
	if req.ID == "" {
		return nil, refuse(400, "say which case: its id, or the sequence of its dead letter")
	}
	id, err := q.id(req.ID)
	if err != nil {
		return nil, err
	}
	r, ok, err := q.store.Case(id)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, refuse(404, "there is no case %q", id)
	}
	c := view(r)
	if c.History, err = q.store.History(id); err != nil {
		return nil, err
	}
	e, _, err := q.store.Evidence(r)
	c.Detail = e.Detail
	return q.fit(c), err
}

// fit drops the oldest changes of a case whose answer would outgrow the
// broker's limit; the log has them all.
func (q *Service) fit(c event.Case) event.Case {
	for len(c.History) > 1 {
		if data, err := json.Marshal(c); err != nil || len(data) <= q.room() {
			break
		}
		c.History = c.History[(len(c.History)+1)/2:]
	}
	return c
}
