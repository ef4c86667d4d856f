-- The table of leases. A key is held while holder is not empty and expires_at is not
-- past. There is no further index, and room is left in every page, so that taking,
-- renewing and releasing a key write no index.

CREATE TABLE locker_lease (
  key        text COLLATE "C" PRIMARY KEY,
  holder     text,
  token      bigint NOT NULL,
  expires_at timestamptz NOT NULL
) WITH (fillfactor = 70)
