-- Who was champion from when to when (null: still is), and why it became that.
with moves as (
    select version, moved_at, action from alias_moves where alias = 'champion'
    union all
    -- Decisions of an earlier Navi, which recorded no moves.
    select version, decided_at, 'promote' from promotions where promoted and alias = 'champion' and version not in (
        select version from alias_moves where alias = 'champion' and action = 'promote'
    )
),
held as (
    select *, lead(moved_at) over (order by moved_at) as until from moves
),
decided as (
    select * from promotions where promoted and alias = 'champion'
    qualify row_number() over (partition by version order by decided_at desc) = 1
)
select held.version, date_trunc('second', moved_at) as since, date_trunc('second', until) as until, action,
       models.run_id as trained_by, round(100 * decided.mean_difference, 2) as lead_points, decided.opponent,
       coalesce(decided.reason, action) as reason
from held
left join models using (version)
left join decided on held.action = 'promote' and decided.version = held.version
order by since desc;
