package inventory

// AllSessions stands for every session of an operator that was begun before it
// was ended.
const AllSessions = "*"
