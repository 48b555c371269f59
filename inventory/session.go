package inventory

// AllSessions, in place of the id of an ended session, means that all sessions that began before this record have ended.
const AllSessions = "*"
