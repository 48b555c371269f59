package inventory

import (
	"net"
	"strconv"
	"time"
)

// BMCReport is what a check of a BMC found.
type BMCReport struct {
	Power string        `json:"power"`
	Boot  string        `json:"boot,omitempty"` // the boot device that the BMC reported
	Took  time.Duration `json:"took,omitempty"` // nanoseconds in JSON

	Endpoint string `json:"endpoint,omitempty"` // URL of the AMT port in use: https://10.0.9.21:16993

	// Only Redfish reads the fields below.
	Maker      string       `json:"maker,omitempty"`
	Model      string       `json:"model,omitempty"`
	Firmware   string       `json:"firmware,omitempty"`   // version of the machine's firmware
	Controller string       `json:"controller,omitempty"` // version of the BMC's firmware
	SecureBoot string       `json:"secureBoot,omitempty"` // whether Secure Boot was on at the last start: enabled or disabled
	Media      []string     `json:"media,omitempty"`      // URLs of the images in the virtual CD drives
	Sensors    []BMCReading `json:"sensors,omitempty"`
	// Odd lists deviations from the Redfish specification that Ingot tolerates.
	Odd []string `json:"odd,omitempty"`
}

// BMCReading is the value of a sensor.
type BMCReading struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`             // Cel, RPM, Percent
	Health string  `json:"health,omitempty"` // ok, warning or critical
}

// KeyAddress returns the name under which the key of the BMC's certificate is stored: ConsumerURL if b has a relayed driver,
// otherwise host and port.
func (b *BMC) KeyAddress() string {
	if b.Capabilities().Relayed {
		return b.ConsumerURL
	}
	return net.JoinHostPort(b.Host, strconv.Itoa(b.ListenPort()))
}
