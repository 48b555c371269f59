package inventory

// AllSessions, as an ended session, ends all sessions that began earlier.
const AllSessions = "*"
