-- Which temporal core earns most, how fast it is, over how many seeds, and in which profile.
select * exclude (hardware) from core_comparison;
