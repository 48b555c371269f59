// Package ingot is the root of Ingot, a service that installs operating systems on bare metal, durably. It holds only tests:
// which package may import which, how long files and functions may be, and the import graph in docs/architecture.md.
package ingot
