-- Reward, speed and number of seeds of each temporal core, by profile.
select * exclude (hardware) from core_comparison;
