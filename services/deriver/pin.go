package deriver

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
)

func pinToken(profile string) string { return "profile:" + event.Encode(profile) }

// ensurePinned puts the recipe into the log under its name, once. A log that
// holds another recipe under that name halts this consumer: another recipe
// needs another name.
func (m *maker) ensurePinned(ctx context.Context) error {
	if held, err := m.pinHeld(); held || err != nil {
		return err
	}
	m.pinning.Lock()
	defer m.pinning.Unlock()
	if held, err := m.pinHeld(); held || err != nil {
		return err
	}
	fact := m.pinned
	fact.At = time.Now().UTC()
	sent, err := m.log.Encode(fact)
	if err != nil {
		return err
	}
	if _, err := m.log.PublishFact(ctx, fact, nil); err != nil {
		return err
	}
	// A crash here publishes again under the same id.
	tokens, out, first := m.learnPin(fact)
	if first {
		result, err := json.Marshal(out)
		if err != nil {
			return fmt.Errorf("deriver: %w", err)
		}
		// With the fact itself, so that a log that lost it is healed.
		if err := m.set.Record(completed.Completion{Tokens: tokens, Result: result, Fact: sent}); err != nil {
			return err
		}
	}
	_, err = m.pinHeld()
	return err
}

// pinHeld reports whether the log is known to hold the recipe; that it holds
// another one is an environment fault.
func (m *maker) pinHeld() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.loadPin(); err != nil || m.held == "" {
		return false, err
	}
	if m.held != m.pinned.Digest {
		return false, fault.New(fault.ProfileMismatch, nil, "profile %s is pinned as %s; this build has %s: give the other recipe another name", m.recipe.Name, m.held, m.pinned.Digest)
	}
	return true, nil
}

// loadPin reads what the set knows; m.mu is held.
func (m *maker) loadPin() error {
	if m.held != "" {
		return nil
	}
	data, known, err := m.set.Result(pinToken(m.recipe.Name))
	if err != nil || !known {
		return err
	}
	var was made
	if err := json.Unmarshal(data, &was); err != nil {
		return fmt.Errorf("deriver: %w", err)
	}
	m.held = was.RecipeDigest
	return nil
}

// learnPin learns of a pinned recipe. The first one holds, whatever is pinned
// under the name later.
func (m *maker) learnPin(f event.ProfilePinned) (tokens []string, out made, first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.Name != m.recipe.Name || m.loadPin() != nil || m.held != "" && m.held != f.Digest {
		return nil, made{}, false
	}
	m.held = f.Digest
	return []string{pinToken(f.Name)}, made{Derived: event.Derived{Profile: f.Name, RecipeDigest: f.Digest}}, true
}
