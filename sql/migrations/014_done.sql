-- The end of a flight that has nothing left to see.

alter table episodes add column done_at bigint;
