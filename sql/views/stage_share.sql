-- Where the time of every run goes: share of the time of all stages, by stage; those inside another are not summed again.
create or replace view stage_share as
select run_id, stage, percent, mean_ms, samples
from stage_breakdown
where stage not like '%/%/%'
order by run_id, percent desc;
