"""The private Postgres and broker that `pilot up` starts when it is given none. Use them through `cli.services`."""
