-- Champions with their reigns (null: still is) and the reason of each promotion.
with decided as (
    select * from promotions where promoted and alias = 'champion'
    qualify row_number() over (partition by version order by decided_at desc) = 1
)
select held.version, date_trunc('second', since) as since, date_trunc('second', until) as until, action,
       models.run_id as trained_by, round(100 * decided.mean_difference, 2) as lead_points, decided.opponent,
       coalesce(decided.reason, action) as reason
from champion_reigns held
left join models using (version)
left join decided on held.action = 'promote' and decided.version = held.version
order by held.since desc;
