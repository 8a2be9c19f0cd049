BdJE¢Ó>ew
?