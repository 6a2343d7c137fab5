package fault

import "slices"

// aways are the codes by which a dependency does not answer, or turns everybody
// away: the allow-list of what a circuit breaker counts. Any other failure came
// from something that answered (a file still being written, an encoder that
// failed on this page, a refused path), or is our own.
var aways = []Code{
	Timeout, ConnectionRefused, ConnectionReset, TooManyRequests, BadGateway, Unavailable, GatewayTimeout, IOError,
	DeviceBusy, DeviceJam, DeviceCoverOpen,
}

// Away reports whether the failure speaks of the thing that the work leant on,
// a device, an endpoint or a store, as being away.
func (e *Error) Away() bool { return slices.Contains(aways, e.Code) }
