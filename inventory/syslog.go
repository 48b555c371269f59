package inventory

import "time"

// A SyslogLine is one message that a machine has sent by syslog (RFC 3164, RFC 5424). It is only displayed, because any host on
// the network can forge it.
type SyslogLine struct {
	Seq      int64     `json:"seq" db:"seq"`
	Machine  string    `json:"machine" db:"machine"`
	At       time.Time `json:"at" db:"-"` // when it was received
	Severity string    `json:"severity" db:"severity"`
	Program  string    `json:"program,omitempty" db:"program"`
	Text     string    `json:"text" db:"text"` // printable ASCII
}

// A SyslogFilter selects lines of one machine, in the order of their sequence numbers.
type SyslogFilter struct {
	Machine    string
	After      int64 // only lines with a greater Seq (if Descending: with a smaller Seq); 0 = all lines
	Descending bool  // the newest first
	Limit      int   // 0 = 1000
}
