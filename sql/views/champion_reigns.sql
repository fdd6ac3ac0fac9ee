-- Champions with their reigns (until is null: still is) and the move of the alias.
create or replace view champion_reigns as
with moves as (
    select version, moved_at, action from alias_moves where alias = 'champion'
    union all
    -- Decisions of an earlier Navi, which recorded no moves.
    select version, decided_at, 'promote' from promotions where promoted and alias = 'champion' and version not in (
        select version from alias_moves where alias = 'champion' and action = 'promote'
    )
)
select version, moved_at as since, lead(moved_at) over (order by moved_at) as until, action
from moves
order by since;
