"""The private Postgres and broker that `pilot up` starts when it is given none (see `cli.services`)."""
