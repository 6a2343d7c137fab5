// Package manifests tests what lies beside it: kustomize renders each overlay
// in this process, every object is decoded strictly into its real type, and the
// settings are compared with the programs. It is a module of its own, outside
// go.work, so that nothing of Kubernetes enters the services.
package manifests
