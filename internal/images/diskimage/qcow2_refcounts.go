package diskimage

import "encoding/binary"

// countClusters returns how often each cluster of the file is referenced, except by the refcount structures.
func (q *qcow2) countClusters() (used []uint16, err error) {
	clusters := (q.length + q.cluster - 1) / q.cluster
	if clusters > maxClusters {
		return nil, refuse(convertAgainRemedy, "the qcow2 image has %d clusters, more than %d", clusters, maxClusters)
	}

	used = make([]uint16, clusters)
	q.count(used, 0, uint64(q.Length))
	q.count(used, q.L1Offset, 8*uint64(q.L1Size))
	for _, offset := range q.l1 {
		if offset != 0 {
			q.count(used, offset, q.cluster)
		}
	}

	for guest := uint64(0); guest < q.Size; guest += q.cluster {
		x, err := q.find(guest)
		if err != nil {
			return nil, err
		}
		q.count(used, x.offset, x.length)
	}
	return used, nil
}

// count adds 1 to the number of each cluster that overlaps the range of length bytes at offset.
func (q *qcow2) count(used []uint16, offset, length uint64) {
	if length == 0 {
		return
	}
	for n := offset / q.cluster; n <= (offset+length-1)/q.cluster && n < uint64(len(used)); n++ {
		used[n] = max(used[n], used[n]+1) // stops at the maximum instead of overflowing
	}
}

// compareRefcounts returns a *Refusal if a cluster is used more often than its refcount says: a write through one
// reference may have changed the data of the others. A refcount that is too high only wastes space.
func (q *qcow2) compareRefcounts(used []uint16) error {
	perBlock := q.cluster * 8 >> q.RefcountOrder
	needed := (uint64(len(used)) + perBlock - 1) / perBlock
	entries := min(needed, uint64(q.RefcountClusters)*q.cluster/8)
	if err := q.checkPlace(q.RefcountOffset, uint64(q.RefcountClusters)*q.cluster, "the refcount table"); err != nil {
		return err
	}

	table := make([]byte, 8*needed) // entries that the file's table does not have stay zero
	if err := q.readAt(table[:8*entries], q.RefcountOffset); err != nil {
		return err
	}
	q.count(used, q.RefcountOffset, uint64(q.RefcountClusters)*q.cluster)
	for n := range entries {
		offset := binary.BigEndian.Uint64(table[8*n:])
		if offset == 0 {
			continue
		}
		if err := q.checkPlace(offset, q.cluster, "refcount block %d", n); err != nil {
			return err
		}
		q.count(used, offset, q.cluster)
	}

	block := make([]byte, q.cluster)
	for n := range needed {
		clear(block)
		if offset := binary.BigEndian.Uint64(table[8*n:]); offset != 0 {
			if err := q.readAt(block, offset); err != nil {
				return err
			}
		}
		for k, uses := range used[n*perBlock : min((n+1)*perBlock, uint64(len(used)))] {
			if count := refcount(block, k, q.RefcountOrder); count < uint64(uses) {
				return refuse(repairRemedy, "the qcow2 image is damaged: the cluster at %#x is used %d times, but its refcount is %d",
					(n*perBlock+uint64(k))*q.cluster, uses, count)
			}
		}
	}
	return nil
}

// refcount returns entry n of a refcount block whose entries have 1<<order bits.
func refcount(block []byte, n int, order uint32) uint64 {
	switch order {
	case 6:
		return binary.BigEndian.Uint64(block[8*n:])
	case 5:
		return uint64(binary.BigEndian.Uint32(block[4*n:]))
	case 4:
		return uint64(binary.BigEndian.Uint16(block[2*n:]))
	}
	bit := n << order
	return uint64(block[bit/8]>>(bit%8)) & (1<<(1<<order) - 1)
}
