package inventory

// AllSessions takes the place of the id of an ended session: all sessions that began before have ended.
const AllSessions = "*"
