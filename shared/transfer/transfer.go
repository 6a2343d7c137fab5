// Package transfer carries files of any size over NATS requests, in memory
// independent of their size.
//
// The wire. A client subscribes to an inbox of its own and sends one request
// whose header Colophon-Inbox names it; Colophon-Timeout is how long the
// client will wait. The server sends each file to that inbox in parts of at
// most 256 KiB, one request each, and sends the next only after the client's
// reply:
//
//	Colophon-File: <name>    Colophon-Part: <n, from 0>
//	Colophon-Last: true      on a file's last part, which may be empty, with
//	Colophon-SHA256: <hex>   of the whole file
//
// A reply without the header Colophon-Error means "taken". When all files are
// sent the server answers the client's first request: that answer is the end
// of the transfer. A service error (Nats-Service-Error) is a failure of the
// whole transfer, whatever was sent before it.
package transfer

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// PartSize is the most bytes of a file in one message.
const PartSize = 256 << 10

// Headers of the wire.
const (
	HeaderInbox   = "Colophon-Inbox"
	HeaderTimeout = "Colophon-Timeout" // a Go duration
	HeaderFile    = "Colophon-File"
	HeaderPart    = "Colophon-Part"
	HeaderLast    = "Colophon-Last"
	HeaderSHA256  = "Colophon-SHA256"
	HeaderError   = "Colophon-Error"
)

// headers that a nats.go/micro service answers a failure with.
const (
	headerServiceError = "Nats-Service-Error"
	headerServiceCode  = "Nats-Service-Error-Code"
)

// Errors of a transfer.
var (
	// ErrRefused: the other side could not take or make a part.
	ErrRefused = errors.New("transfer: the other side refused")
	// ErrBroken: parts are missing, out of order, or not what was sent.
	ErrBroken = errors.New("transfer: the file did not arrive whole")
)

// ServiceError is a service's answer that it failed.
type ServiceError struct {
	Code    string
	Message string
}

// Error implements error.
func (e *ServiceError) Error() string { return fmt.Sprintf("service error %s: %s", e.Code, e.Message) }

// Unwrap lets [errors.Is] find [ErrRefused].
func (e *ServiceError) Unwrap() error { return ErrRefused }

// AnswerError gives the failure that an answer reports, or nil.
func AnswerError(m *nats.Msg) error {
	text := m.Header.Get(headerServiceError)
	if text == "" && m.Header.Get(headerServiceCode) == "" {
		return nil
	}
	return &ServiceError{Code: m.Header.Get(headerServiceCode), Message: text}
}

// Timeout reads how long a client will wait; fallback where it does not say.
func Timeout(h nats.Header, fallback time.Duration) time.Duration {
	d, err := time.ParseDuration(h.Get(HeaderTimeout))
	if err != nil || d <= 0 {
		return fallback
	}
	return d
}
