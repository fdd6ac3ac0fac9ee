-- Champion after champion on one course, each with its lead over the one before.
-- course: name or hash, see navi query course_list; by default the one of the champion
select * exclude (course) from champion_progress where course = (select course from chosen_course) order by number;
