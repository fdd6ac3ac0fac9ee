-- Number of a version, v012 or v012@home: as text v999 comes after v1000.
create or replace macro version_number(version) as try_cast(regexp_extract(version, '^v([0-9]+)', 1) as bigint);
