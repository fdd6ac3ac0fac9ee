-- The best cell of each sweep and profile by each of its numbers, with its lead over the next.
select * exclude (hardware) from sweep_best;
