-- What a server of the first schema left behind: a tenant, a node, a lease of each state, usage, prices.
INSERT INTO tenant VALUES ('acme', 1000, 2000, 1, NULL, NULL);
INSERT INTO tenant VALUES ('acme/research', 0, NULL, 1, 65536, 10);
INSERT INTO node VALUES (1, 'one', '10.0.0.7:7583', '[{"name":"scripted GPU","uuid":"GPU-0","memory":17179869184,"software":true,"compute_capability":"12.0","driver_version":13000}]', 1000);
INSERT INTO lease VALUES (1, 'acme', 'ended.py', 1, 500000, 0, 0, 100, 1, 't', 'ended', 1, 'its program ended', 1, '[0]', 8589934592, NULL, 1000, 1000, 1100, 5000);
INSERT INTO lease VALUES (2, 'acme/research', 'runs.py', 1, 250000, 0, 0, 100, 1, 't', 'running', 2, NULL, 1, '[0]', 4294967296, NULL, 2000, 2000, 2100, NULL);
INSERT INTO lease VALUES (3, 'acme', 'waits.py', 1, 1000000, 0, 1, 200, 0, 't', 'queued', 1, 'needs 100 % of a GPU', NULL, '[]', 0, NULL, 9000000000000, 9000000000000, NULL, NULL);
INSERT INTO usage_record VALUES ('2c3cb1bed8e6d891f396b0dc9dadb729', 1, 2, 1, 3, 'acme/research', 0, 3600000, 250000, 1, 1024, 900000000000, 450000000000, 3686400000, 1, 1, 1, 1, 0, 5000);
INSERT INTO usage_record VALUES ('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 1, 9, 1, 1, 'globex', 3600000, 3600001, 1, 1, 1, 1, 1, 1, 1, 4611686018427387903, 4611686018427387903, 1, 0, 5000);
INSERT INTO usage_record VALUES ('bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 1, 9, 1, 2, 'globex', 3600000, 3600001, 1, 1, 1, 1, 1, 1, 1, 4611686018427387903, 4611686018427387903, 1, 0, 5000);
INSERT INTO usage_record VALUES ('cccccccccccccccccccccccccccccccc', 1, 9, 1, 3, 'globex', 3600000, 3600001, 1, 1, 1, 1, 1, 1, 1, 4611686018427387903, 4611686018427387903, 1, 0, 5000);
INSERT INTO price VALUES ('reserved', 0, 2000000);
INSERT INTO idempotency VALUES ('t', 'a-key', '{}', 1, 9000000000000);
