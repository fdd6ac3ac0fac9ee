-- A learning service writes millions of experiences: their index would be a third of the file. The one writer keeps the key.

alter table service_experiences rename to indexed_experiences;
create table service_experiences as select * from indexed_experiences;
drop table indexed_experiences;
