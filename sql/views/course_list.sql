-- Every course that was flown: its scenes, starts, decisions and sensor, how many subjects flew it, and whether it is the
-- pinned one, which rankings are about: the test course that the champion flew by the protocol of its promotion. No later
-- evaluation displaces it. Without one it is the course of the promotion itself, without a champion the test course flown last.
create or replace view course_list as
with flown as (
    select evaluations.*, course, protocol, courses.task as flown_for
    from evaluations join courses using (evaluation_id)
    where not coalesce(confirms, false)
),
champion as (
    select weights_hash, promotions.config_hash as protocol
    from aliases
    join models using (version)
    join promotions on promotions.alias = aliases.alias and promotions.version = aliases.version and promoted
    where aliases.alias = 'champion'
    qualify row_number() over (order by decided_at desc) = 1
),
pinned as (
    select course from (
        select course, case when split = 'test' then 1 else 2 end as place, epoch(recorded_at) as age
        from flown join champion using (weights_hash, protocol)
        union all
        select course, case when split = 'test' then 3 else 5 end + (subject_kind = 'pilot')::bigint, -epoch(recorded_at)
        from flown where flown_for = 'explore'
    ) order by place, age limit 1
)
select
    course,
    coalesce(
        (select max_by(name, named_courses.recorded_at) from named_courses where named_courses.course = flown.course),
        concat(coalesce(max(split), any_value(flown_for)), '-', any_value(scenes), 'x', any_value(starts), 'x', any_value(max_steps))
    ) as name,
    course in (select course from pinned) as pinned,
    any_value(flown_for) as task,
    max(split) as split,
    any_value(scenes) as scenes,
    any_value(starts) as starts,
    any_value(max_steps) as decisions,
    any_value(sensor) as sensor,
    count(distinct coalesce(weights_hash, subject)) as subjects,
    any_value(protocol) as protocol,
    date_trunc('second', max(recorded_at)) as flown_at
from flown
group by course
order by pinned desc, flown_at desc;
