package disktest

import (
	"encoding/binary"
	"hash/crc32"
)

// HandMade holds functions that write a signature in the form that blkid(8) recognizes. Without these functions, a test would need
// a kernel or special programs to write these signatures.
var HandMade = map[string]func(b []byte){
	"md 0.90": func(b []byte) {
		s := b[len(b)&^0xffff-0x10000:]
		for i, v := range []uint32{0xa92b4efc, 0, 90, 0, 0, 0x11111111, 1700000000, 1, uint32(len(b)/1024 - 128), 2, 2} {
			binary.LittleEndian.PutUint32(s[4*i:], v)
		}
		copy(s[52:], "0123456789ab") // the rest of the UUID
	},
	"md 1.0": func(b []byte) { mdSuperblock(b, len(b)&^0xfff-0x2000) },
	"md 1.1": func(b []byte) { mdSuperblock(b, 0) },
	"md 1.2": func(b []byte) { mdSuperblock(b, 4096) },
	"LVM": func(b []byte) {
		s := b[512:1024]
		copy(s, "LABELONE\x01")
		binary.LittleEndian.PutUint32(s[20:], 32)
		copy(s[24:], "LVM2 001"+"0123456789abcdefghijklmnopqrstuv")
		binary.LittleEndian.PutUint32(s[16:], ^crc32.Update(^uint32(0xf597a6cf), crc32.IEEETable, s[20:]))
	},
	"Ceph": func(b []byte) { copy(b, "bluestore block device\n01234567-89ab-cdef-0123-456789abcdef\n\x02\x01") },
	"zfs": func(b []byte) {
		end := len(b) &^ (256<<10 - 1)
		for _, label := range []int{0, 256 << 10, end - 512<<10, end - 256<<10} {
			for at := label + 128<<10; at < label+256<<10; at += 1024 {
				binary.LittleEndian.PutUint64(b[at:], 0x00bab10c)
			}
		}
	},
}

func mdSuperblock(b []byte, at int) {
	s := b[at:]
	binary.LittleEndian.PutUint32(s, 0xa92b4efc)
	binary.LittleEndian.PutUint32(s[4:], 1)
	copy(s[16:], "0123456789abcdefname")
	binary.LittleEndian.PutUint64(s[144:], uint64(at/512))
}
