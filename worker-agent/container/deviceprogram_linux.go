package container

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A device is the number of a device node. As a rule of a deviceProgram, it allows to read, write and make this node.
type device struct {
	block        bool
	major, minor uint32
}

// anyMinor as the minor number of a rule allows all minor numbers.
const anyMinor = 1<<32 - 1

// pseudoDevices are the devices that each container has.
var pseudoDevices = []device{
	{false, 1, 3}, {false, 1, 5}, {false, 1, 7}, {false, 1, 8}, {false, 1, 9}, // null, zero, full, random, urandom
	{false, 5, 0}, {false, 5, 2}, {false, 136, anyMinor}, // tty, ptmx, pts
}

// A deviceProgram decides which devices the processes of a cgroup may use. A program in a cgroup below can only forbid more.
type deviceProgram struct{ cgroup, program int }

// allow replaces the rules of p in one step: no process sees a moment without a program.
func (p *deviceProgram) allow(devices []device) error {
	program, err := loadDeviceProgram(devices)
	if err != nil {
		return fmt.Errorf("loading the rules for devices: %w", err)
	}
	a := struct{ target, program, kind, flags, replaced uint32 }{
		uint32(p.cgroup), uint32(program), unix.BPF_CGROUP_DEVICE, unix.BPF_F_ALLOW_MULTI, 0,
	}
	if p.program > 0 {
		a.flags, a.replaced = a.flags|unix.BPF_F_REPLACE, uint32(p.program)
	}
	if _, err := callBPF(unix.BPF_PROG_ATTACH, unsafe.Pointer(&a), unsafe.Sizeof(a)); err != nil {
		_ = unix.Close(program) // it is in no cgroup
		return fmt.Errorf("setting the rules for devices: %w", err)
	}
	if p.program > 0 {
		_ = unix.Close(p.program) // it is in no cgroup any more
	}
	p.program = program
	return nil
}

// close closes p. The rules stay in force while the cgroup exists.
func (p *deviceProgram) close() error {
	if p.program == 0 {
		return unix.Close(p.cgroup)
	}
	return errors.Join(unix.Close(p.program), unix.Close(p.cgroup))
}

// instruction encodes an instruction of eBPF (Linux, Documentation/bpf/instruction-set.rst).
func instruction(code, dst, src byte, offset int16, value uint32) []byte {
	b := []byte{code, src<<4 | dst}
	b = binary.LittleEndian.AppendUint16(b, uint16(offset))
	return binary.LittleEndian.AppendUint32(b, value)
}

// deviceInstructions returns the program that allows the devices. Its argument is a struct bpf_cgroup_dev_ctx: the kind of access in the
// upper half of the first word and the kind of device in the lower half, the major number, the minor number.
func deviceInstructions(devices []device) (code []byte) {
	const (
		load, and, notEqual, set, exit = 0x61, 0x54, 0x56, 0xb7, 0x95
		block, character               = 1, 2
	)
	add := func(b []byte) { code = append(code, b...) }
	for field := byte(0); field < 3; field++ {
		add(instruction(load, 2+field, 1, 4*int16(field), 0))
	}
	add(instruction(and, 2, 0, 0, 0xffff))
	for _, d := range devices {
		kind := uint32(character)
		if d.block {
			kind = block
		}
		if d.minor == anyMinor {
			add(instruction(notEqual, 2, 0, 3, kind))
			add(instruction(notEqual, 3, 0, 2, d.major))
		} else {
			add(instruction(notEqual, 2, 0, 4, kind))
			add(instruction(notEqual, 3, 0, 3, d.major))
			add(instruction(notEqual, 4, 0, 2, d.minor))
		}
		add(instruction(set, 0, 0, 0, 1))
		add(instruction(exit, 0, 0, 0, 0))
	}
	add(instruction(set, 0, 0, 0, 0))
	add(instruction(exit, 0, 0, 0, 0))
	return code
}

// loadDeviceProgram returns the descriptor of a program that allows the devices.
func loadDeviceProgram(devices []device) (int, error) {
	code, license := deviceInstructions(devices), []byte("GPL\x00")
	a := struct {
		kind, count    uint32
		code, license  uint64
		logLevel, size uint32
		log            uint64
		version, flags uint32
		name           [16]byte
		ifindex, where uint32
	}{
		kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(len(code) / 8), code: address(code), license: address(license),
		where: unix.BPF_CGROUP_DEVICE,
	}
	program, err := callBPF(unix.BPF_PROG_LOAD, unsafe.Pointer(&a), unsafe.Sizeof(a))
	runtime.KeepAlive(code)
	runtime.KeepAlive(license)
	return program, err
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func callBPF(command uintptr, attributes unsafe.Pointer, size uintptr) (int, error) {
	r, _, e := unix.Syscall(unix.SYS_BPF, command, uintptr(attributes), size)
	if e != 0 {
		return -1, os.NewSyscallError("bpf", e)
	}
	return int(r), nil
}
