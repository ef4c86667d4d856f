-- Shows what is there under a name.
--
--   $1  the name, quoted where it has to be
--   $2  the rights that are needed (text[])
--
-- Replies with no row if there is nothing, else with one: its kind and persistence as in
-- pg_class, its columns as "name type, …" in the order of their names (without the quotes of
-- quote_all_identifiers), whether the column key is unique and tells all keys apart, whether
-- a sequence hands out tokens in order and with room between them, and those of the rights
-- that are missing.

SELECT c.relkind::text,
       c.relpersistence::text,
       coalesce((SELECT string_agg(attname || ' ' || replace(format_type(atttypid, NULL), '"', ''), ', ' ORDER BY attname COLLATE "C")
                 FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped), ''),
       EXISTS (SELECT FROM pg_index AS i
               JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = i.indkey[0] AND a.attname = 'key'
               JOIN pg_collation AS l ON l.oid = a.attcollation AND l.collisdeterministic
               WHERE i.indrelid = c.oid AND i.indnkeyatts = 1 AND i.indisunique AND i.indisvalid
                 AND i.indimmediate AND i.indpred IS NULL),
       EXISTS (SELECT FROM pg_sequence WHERE seqrelid = c.oid AND seqincrement >= 1024 AND seqcache = 1
                 AND NOT seqcycle AND seqtypid = 'bigint'::regtype),
       ARRAY(SELECT p FROM unnest($2::text[]) AS p
             WHERE NOT CASE WHEN (c.relkind = 'S') <> (p = 'USAGE') THEN true -- there is no such right
                            WHEN c.relkind = 'S' THEN has_sequence_privilege(c.oid, p)
                            ELSE has_table_privilege(c.oid, p)
                       END)
FROM pg_class AS c WHERE c.oid = to_regclass($1::text)
