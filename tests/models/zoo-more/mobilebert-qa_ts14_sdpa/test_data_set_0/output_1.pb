B
end_logitsJ4Å@üT!¿F}?}›>‘0@õv(@w5Ê¾