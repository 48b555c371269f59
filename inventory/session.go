package inventory

// AllSessions is stored in place of the id of an ended session: all sessions that began before this record have ended.
const AllSessions = "*"
