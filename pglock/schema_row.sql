-- The table of row locks. A key is held while a transaction has locked its row.

CREATE TABLE locker_row (
  key text COLLATE "C" PRIMARY KEY
)
