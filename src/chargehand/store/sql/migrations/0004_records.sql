-- What doors remember besides jobs: small things by kind, tenant and name, some of them due at an instant.

CREATE TABLE records (
  kind       TEXT   NOT NULL,
  tenant     TEXT   NOT NULL,
  name       TEXT   NOT NULL,
  body       BLOB   NOT NULL,
  version    BIGINT NOT NULL CHECK (version >= 1),
  due_at     BIGINT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  PRIMARY KEY (kind, tenant, name)
);

CREATE INDEX records_due ON records (kind, due_at) WHERE due_at IS NOT NULL;
