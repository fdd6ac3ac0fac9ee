-- Where the time of a run goes: mean milliseconds per stage and its share of all timed stages.
create or replace view stage_breakdown as
select
    run_id,
    stage,
    round(avg(milliseconds), 3) as mean_ms,
    round(100 * sum(milliseconds) / sum(sum(milliseconds)) over (partition by run_id), 1) as percent,
    count(*) as samples
from stage_timings
group by run_id, stage
order by run_id, sum(milliseconds) desc;
