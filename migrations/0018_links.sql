-- Whether the last try to measure a link could open no connection to the other node's address.
ALTER TABLE requests ADD COLUMN unreachable boolean NOT NULL DEFAULT false;
