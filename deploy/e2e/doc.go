// Package e2e holds the end-to-end and chaos tests: the real programs as child
// processes on real folders, judged from outside by their exit status, their
// JSON, their log lines, the files they leave, the exports of the ledger and
// the streams of the broker. It knows no internals of a service.
//
// The ordinary run takes minutes. The long forms (4,000 files, gigabytes) have
// the build tag soak: `make soak`.
package e2e
