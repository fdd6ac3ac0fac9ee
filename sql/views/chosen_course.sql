-- The course that rankings are about: the one that the variable `course` names, by name or hash, otherwise the pinned one.
create or replace view chosen_course as
select coalesce(
    (select course from course_list where getvariable('course') in (course, name) order by flown_at desc limit 1),
    case
        when getvariable('course') is null then (select course from course_list where pinned)
        else error('no course ' || getvariable('course') || '; next: navi query course_list')
    end
) as course;
