package lab

import (
	"bytes"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// sleep makes the machine listen for its magic packet until the lab is closed. It listens on the
// bridge of its VLAN, because the link of a machine that is off is down here.
func (m *Machine) sleep() error {
	hw, err := net.ParseMAC(m.spec.MAC)
	if err != nil {
		return err
	}
	magic := append(bytes.Repeat([]byte{0xff}, 6), bytes.Repeat(hw, 16)...)
	var socket *os.File
	err = m.lab.InNamespace(Switch, func() error {
		bridge, err := net.InterfaceByName(fmt.Sprintf("br%d", m.spec.VLAN))
		if err != nil {
			return err
		}
		const ip = unix.ETH_P_IP>>8 | unix.ETH_P_IP<<8&0xff00 // in network order
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, ip)
		if err != nil {
			return err
		}
		socket = os.NewFile(uintptr(fd), "magic packets")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ip, Ifindex: bridge.Index})
	})
	if err != nil {
		return fmt.Errorf("listening for magic packets: %w", err)
	}
	if !m.lab.onClose(socket.Close) {
		_ = socket.Close()
		return ErrClosed
	}
	go func() {
		packet := make([]byte, 2048)
		for {
			n, err := socket.Read(packet)
			if err != nil {
				return // closed
			}
			if !bytes.Contains(packet[:n], magic) {
				continue
			}
			m.state.Lock()
			m.woken++
			m.state.Unlock()
			if err := m.PowerOn(m.lab.ctx); err != nil {
				m.lab.log.Warn("waking", "machine", m.spec.Name, "error", err)
			}
		}
	}()
	return nil
}

// Woken returns the number of magic packets for the machine.
func (m *Machine) Woken() int {
	m.state.Lock()
	defer m.state.Unlock()
	return m.woken
}
