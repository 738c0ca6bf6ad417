-- Dead deliveries are listed newest first, whichever endpoint they are for.
-- oldest: 12

CREATE INDEX deliveries_dead_listed ON deliveries (id) WHERE state = 'dead';
