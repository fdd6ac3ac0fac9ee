-- Model version of every alias, and the time since when. The lead of a promotion is in points of c_vis_auc, with
-- its 95 % interval.
create or replace view aliases as
with moves as (
    select alias, version, moved_at, action from alias_moves
    union all
    -- A decision whose move the registry has not recorded yet.
    select alias, version, decided_at, 'promote' from promotions where promoted
),
held as (
    select * from moves qualify row_number() over (partition by alias order by moved_at desc) = 1
),
decided as (
    select * from promotions where promoted
    qualify row_number() over (partition by alias, version order by decided_at desc) = 1
)
select
    held.alias, held.version, held.moved_at as since,
    coalesce(decided.reason, held.action) as reason,
    round(100 * decided.mean_difference, 2) as lead_points,
    round(100 * decided.low, 2) as low,
    round(100 * decided.high, 2) as high
from held
left join decided on held.action = 'promote' and decided.alias = held.alias and decided.version = held.version;
