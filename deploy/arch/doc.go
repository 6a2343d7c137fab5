// Package arch holds, as tests, the rules about which room may know which.
// Each rule stands with its reason; whoever breaks one on purpose changes the
// rule in the same commit and says why.
package arch
