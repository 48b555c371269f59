-- When each DHCP relay was last heard: a packet that is answered proves a
-- relay, whatever becomes of the server that has answered it.
CREATE TABLE relay (
    giaddr TEXT PRIMARY KEY,
    heard  INTEGER NOT NULL
) STRICT;
