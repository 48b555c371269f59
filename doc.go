// Package ingot is the root of Ingot, a service that installs operating
// systems on bare metal, durably. It holds nothing but the test that says
// which package may import which; docs/architecture.md draws the same map.
package ingot
