-- Which model version every alias points to now, and since when.
create or replace view aliases as
select alias, version, decided_at as since, reason, mean_difference, low, high
from promotions
where promoted
qualify row_number() over (partition by alias order by decided_at desc) = 1;
