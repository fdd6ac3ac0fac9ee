-- Every course that was flown, the pinned one first: that of the champion, which rankings are about.
select * exclude (protocol) from course_list;
