-- Which temporal core earns most, how fast it is, and over how many seeds.
select * exclude (hardware) from core_comparison;
