package inventory

// AllSessions as the name of an ended session ends all sessions that began earlier.
const AllSessions = "*"
